# SPDX-License-Identifier: Apache-2.0
"""quell: quiet gradients for variational inference."""
