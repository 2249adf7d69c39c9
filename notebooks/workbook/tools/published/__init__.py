"""What others measured with NCCL, as they published it, and how far models are off. Nothing was run here.

tables     the tables with their sources: data, from tables.json
compare    NCCL's own model against every row
judge      how far off the estimate is on the tables
"""

from workbook.tools.published.compare import LARGE, SMALL, Comparison, Row, compare
from workbook.tools.published.judge import Judgement, judge
from workbook.tools.published.tables import TABLES, Table, find

__all__ = ["LARGE", "SMALL", "TABLES", "Comparison", "Judgement", "Row", "Table", "compare", "find", "judge"]
