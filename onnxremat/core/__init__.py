"""What everything speaks of: graphs, schedules, their memory under rules, problems and plans."""
