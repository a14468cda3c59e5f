"""Looking at what happened: the inspector widget, its static twins, and the plots of the evaluation."""
