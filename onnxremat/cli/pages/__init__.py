"""Pages to look at: each is one file that needs nothing else and asks no network.

Plots are drawn by uPlot 1.6.32 (`uplot/`, MIT, as its package on npm has it): 51 KB, on a canvas,
made for long series. Of the others that are well kept, plotly's file alone has 4.8 MB, and bokeh
would be one more package to install; Chart.js and ECharts are larger and made for fewer points.
"""
