"""Hypothesis profiles for every test: dev by default, ci and nightly by HYPOTHESIS_PROFILE."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # for `ports`: test folders are not packages

# A noisy two-core machine makes deadlines and "too slow" checks say nothing about the code.
for name, examples in (("dev", 25), ("ci", 200), ("nightly", 5000)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
