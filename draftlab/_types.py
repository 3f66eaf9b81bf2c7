"""Array types of the package: one name each, everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
RealArray = np.ndarray[Any, np.dtype[np.floating[Any]]]
"""Of any precision: what an engine hands over may be float32."""
IntArray = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
