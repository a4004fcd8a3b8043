"""Engines that run the tasks of a plan: processes of this machine."""
