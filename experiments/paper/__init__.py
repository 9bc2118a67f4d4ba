# SPDX-License-Identifier: Apache-2.0
"""The paper's table and figures."""
