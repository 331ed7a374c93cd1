// lookup.h: guesses the next tokens of a text from the text itself, and how many of them are worth checking. Pure.
//
// What followed the newest tokens where they stood before is the guess: texts that quote, list or change something that is there already repeat
// long stretches. A round that reads the newest token and k guesses behind it reads every weight once for all of them; each guess that is what
// the sampler picks anyway saves a round. A wrong one costs what a row more in the round takes, so the text is the same and only the speed differs.
#ifndef ATSI_RUNTIME_LOOKUP_H
#define ATSI_RUNTIME_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/base/error.h"

enum {
    ATSI_LOOKUP_MOST = 7,    // guesses in a round: kernels for few rows take up to 8
    ATSI_LOOKUP_CONTEXT = 4, // newest tokens that are looked for, at most
    ATSI_LOOKUP_LEAST = 2    // and at least
};

// How many guesses are worth it: by how often they were right lately, whether they were checked or not, and by what rounds took.
struct atsi_lookup_pace {
    double right;         // part of the guesses, one after the other
    double single_us;     // a round of one token; 0: none yet
    double more_us;       // and of every guess more
    uint32_t n_measured;  // rounds with guesses that more_us is of
    uint32_t n_unchecked; // tokens since the last such round
};

struct atsi_lookup {
    int32_t *ids; // [n] the text
    uint32_t n, cap, n_most;
    struct atsi_lookup_pace pace;
    uint64_t n_rounds, n_guessed, n_right; // rounds with guesses, these, and those of them that were right
};

// Guesses up to n_most tokens (at most ATSI_LOOKUP_MOST) of texts of up to n_ctx.
enum atsi_status atsi_lookup_create(uint32_t n_ctx, uint32_t n_most, struct atsi_lookup **out, struct atsi_error *err);
void atsi_lookup_free(struct atsi_lookup *l); // NULL fine

// The text goes on with these; n in all stay within n_ctx.
void atsi_lookup_append(struct atsi_lookup *l, const int32_t *ids, uint32_t n);
// Only the first n tokens stay.
void atsi_lookup_truncate(struct atsi_lookup *l, uint32_t n);

// What followed where the newest tokens stood before: of the places with the most of them (up to ATSI_LOOKUP_CONTEXT) the last. Goes on
// into its own guess where it reaches the text's end. Returns how many of n; 0: they are new.
uint32_t atsi_lookup_guess(const struct atsi_lookup *l, int32_t *guess, uint32_t n);

// How many guesses the coming round should check; 0: none.
uint32_t atsi_lookup_pace_choose(const struct atsi_lookup_pace *p, uint32_t n_most);
// The next token was the guessed one or not, and the guesses behind a wrong one are not judged.
void atsi_lookup_pace_judge(struct atsi_lookup_pace *p, bool right);
// A round with n guesses took so long.
void atsi_lookup_pace_time(struct atsi_lookup_pace *p, uint32_t n, double round_us);

#endif
