"""What tests stand things up with: an engine, an executor, a server, a scripted server for clients; tasks and workers to run."""
