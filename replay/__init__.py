"""The history of groups, folded from an export: without Spark on one core, or as a Spark job."""
