"""`wheelsched bench` and `wheelsched demo`: real servers in folders of their own (`workbench`), and what is measured and
shown with them.
"""
