"""MGAP inside mlx-vlm, from the same saved priors as everywhere.

`MlxModel.load(...)` answers questions; `attach(model, mgap.MGAP(prior))` acts in your own mlx-vlm program.
"""

from mgap.errors import require_extra

require_extra("mlx-vlm", "mlx", "mgap.integrations.mlx", module="mlx_vlm")

from mgap.integrations.mlx.mlx_attachment import MlxAttachment, attach  # noqa: E402
from mgap.integrations.mlx.mlx_model import MlxModel  # noqa: E402

__all__ = ["MlxAttachment", "MlxModel", "attach"]
