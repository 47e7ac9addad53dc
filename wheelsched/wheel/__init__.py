"""The hierarchical timing wheel: millions of instants in memory, compiled. It knows instants and numbers, and nothing of
jobs.

`_wheel` is the whole, with the essay on how it works; `_wheel_memory` has its records and slots, `_wheel_turn` what one
turn does.
"""
