"""The tests, by the rooms of the package. README.md beside this says which rig answers which question."""
