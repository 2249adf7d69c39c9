"""Hold what others measured with NCCL, as they published it, against models. Nothing was run here.

tables     the tables with their sources: data, from tables.json
judge      NCCL's own model against every row; how far off the estimate is on the tables
"""

from workbook.tools.published.judge import Comparison, Judgement, Row, compare, judge
from workbook.tools.published.tables import LARGE, SMALL, TABLES, Table, find

__all__ = ["LARGE", "SMALL", "TABLES", "Comparison", "Judgement", "Row", "Table", "compare", "find", "judge"]
