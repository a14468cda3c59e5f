"""Looking at what happened: the inspector widget, its static twins, and the report of an evaluation."""
