"""The plugin contract: the only part of the harness that plugins import (through
``fedbench.core``).
"""
