"""Jobs from other schedulers: crontab, systemd, Kubernetes, Celery. `imports` has the verbs, `entries` what all of them
lead to.
"""
