// profile_fit.h: points of a profile and the lines fitted to them.
#ifndef ATSI_PLANNER_PROFILE_FIT_H
#define ATSI_PLANNER_PROFILE_FIT_H

#include "formats/device_profile.h"

// Whether the profile has a point of exactly this work.
bool atsi_profile_has_point(const struct atsi_device_profile *profile, enum atsi_backend side, uint32_t op,
                            uint32_t dtype, enum atsi_phase phase, double bytes, double flops);
enum atsi_status atsi_profile_add_point(struct atsi_device_profile *profile, enum atsi_backend side, uint32_t op,
                                        uint32_t dtype, enum atsi_phase phase, struct atsi_profile_point point,
                                        struct atsi_error *err);

// Of an operation whose parts (of the whole, 0 < part <= 1) take us[n], n >= 2, what does not shrink with them: where a line meets the axis that
// rises by the median of the slopes between any two points and leaves as many of them above as below. From 0 to the least of us, so that
// times rise from it to any part; one wild time among four moves it no further than the others lie apart.
double atsi_profile_fixed_of(const double *parts, const double *us, int n);

// Fits every cost to its points, and makes the costs for types and operations without points of their own from those of all
// others: the rates are the best that a point reached, the fixed cost is the median of what they leave over.
enum atsi_status atsi_profile_fit(struct atsi_device_profile *profile, struct atsi_error *err);

#endif
