"""The functions that the task's YAML names, all of them lmms-eval's own."""

from lmms_eval.tasks.pope.utils import (  # noqa: F401
    pope_aggregate_accuracy,
    pope_aggregate_f1_score,
    pope_aggregate_precision,
    pope_aggregate_recall,
    pope_doc_to_visual,
    pope_process_results,
)
