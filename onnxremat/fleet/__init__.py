"""Many jobs in processes of their own, here or on a cluster, and what each answered kept at once.

Nothing here knows what a job is about: `commands.sweep` does.
"""
