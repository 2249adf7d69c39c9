"""Time one operation over sizes, and fit α and β to the times: lesson 07."""
