"""What a step brings from the host: scattered updates of the slots' tables, and the rows of a decode step."""
