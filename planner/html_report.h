// html_report.h: a placement as one self-contained page: no script, no outside file, figures as inline SVG with their text.
#ifndef ATSI_PLANNER_HTML_REPORT_H
#define ATSI_PLANNER_HTML_REPORT_H

#include <stdio.h>

#include "planner/place.h"
#include "planner/predict.h"

// What the page shows. All borrowed.
struct atsi_report_page {
    const struct atsi_plan *plan; // placed
    const struct atsi_device_profile *profile;
    const struct atsi_place_options *options;
    const struct atsi_placement *placement;
    struct atsi_forecast decode; // a round of the plan
};

// `atsi-plan --report`: writes the page whole or not at all.
enum atsi_status atsi_html_report(const char *path, const struct atsi_plan *plan,
                                  const struct atsi_device_profile *profile, const struct atsi_place_options *options,
                                  const struct atsi_placement *placement, struct atsi_error *err);

// The panels (html_charts.c). Each is a <section> with a heading, an SVG figure that has a title for readers of screens, a
// sentence that says what it shows, and its numbers as a table where there are few of them.
void atsi_html_memory(FILE *out, const struct atsi_report_page *page);
void atsi_html_grid(FILE *out, const struct atsi_report_page *page);
void atsi_html_density(FILE *out, const struct atsi_report_page *page);
void atsi_html_timeline(FILE *out, const struct atsi_report_page *page);
enum atsi_status atsi_html_budgets(FILE *out, const struct atsi_report_page *page, struct atsi_error *err);

// Text with &, <, > and quotes replaced, for elements and attributes.
void atsi_html_text(FILE *out, const char *text);

#endif
