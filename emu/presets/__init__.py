"""Presets: one TOML file per named fabric, every number with its public source.

A number without a published source is marked as an estimate where it stands, and the fabric's
``calibration`` says what the whole is worth against hardware.  To add a preset, add a file.
"""
