"""Settings for all tests."""

import os

from hypothesis import HealthCheck, settings

# Before anything imports the frameworks: no accelerator is looked for, and TensorFlow's start-up chatter stays away.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# No test fails because the machine is slow.
settings.register_profile("millrace", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("millrace")
