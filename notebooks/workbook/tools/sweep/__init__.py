"""Time one operation over sizes, and fit α and β to it: lesson 07."""
