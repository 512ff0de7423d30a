"""Tests of the client; those that need a cluster start one."""

import logging

# What is lost on purpose need not be told.
logging.getLogger("conclave_lock").addHandler(logging.NullHandler())
