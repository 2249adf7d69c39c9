"""Hold what others measured with NCCL, as they published it, against models. Nothing was run here.

tables     the tables with their sources: data, from tables.json
compare    NCCL's own model against every row
judge      how far off the estimate is on the tables
"""

from workbook.tools.published.compare import Comparison, Row, compare
from workbook.tools.published.judge import Judgement, judge
from workbook.tools.published.tables import LARGE, SMALL, TABLES, Table, find

__all__ = ["LARGE", "SMALL", "TABLES", "Comparison", "Judgement", "Row", "Table", "compare", "find", "judge"]
