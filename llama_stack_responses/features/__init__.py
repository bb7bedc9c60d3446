"""Features beside the core. Each is a folder; without its folder, the rest runs.

What the core reads of a feature is in modules with fixed names, which `core/discovery.py` finds: `kinds.py`,
`settings.py` and `feature.py`. Nothing else imports a feature, and no feature imports another.
"""
