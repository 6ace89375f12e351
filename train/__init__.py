"""Offline work: draft heads and calibrated policies (``python -m train --help``)."""
