"""The real engine on a virtual clock and a journal in memory: for users' tests, and for ours.

`simulator` is the whole, `worker` the one worker inside it, `transport` what stands for its socket, `reads` what it answers
outside of turns, `plugin` the fixture of pytest. `wheelsched.testing` hands the public names on.
"""
