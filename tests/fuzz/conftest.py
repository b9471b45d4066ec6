"""How long the fuzz tests run: TENSORCOM_FUZZ_EXAMPLES examples each, 100 by default."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("TENSORCOM_FUZZ_EXAMPLES", "100")),
    deadline=None,
    suppress_health_check=[*HealthCheck],
)
settings.load_profile("fuzz")
