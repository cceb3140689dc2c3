// Before anything is drawn: a theme that was chosen must not flash in the other one's colours.
{
  const theme = localStorage.getItem("tweedie-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
