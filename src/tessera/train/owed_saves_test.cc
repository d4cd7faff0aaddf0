#include "tessera/train/owed_saves.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(OwedSaves, AreDueAfterStepsThatDivide) {
  OwedSaves owed({.every = 3});
  owed.note_step(1);
  owed.note_step(2);
  EXPECT_FALSE(owed.is_owed());
  owed.note_step(3);
  EXPECT_TRUE(owed.is_owed());
  // A step that was not finite put it off.
  owed.note_step(4);
  EXPECT_TRUE(owed.is_owed());
  owed.note_start();
  EXPECT_FALSE(owed.is_owed());
  EXPECT_FALSE(owed.take_word(false));  // nobody asked
}

TEST(OwedSaves, NeverByStepsUnlessConfigured) {
  OwedSaves owed({.every = 0});
  owed.note_step(1);
  owed.note_step(1000);
  EXPECT_FALSE(owed.is_owed());
}

TEST(OwedSaves, AreDueByTheClock) {
  EXPECT_FALSE(OwedSaves({.every = 0}).is_due());  // not for a quarter of an hour
  EXPECT_FALSE(OwedSaves({.every = 1}).is_due());
  EXPECT_FALSE(OwedSaves({.every_minutes = 0.0}).is_due());
  EXPECT_TRUE(OwedSaves({.every = 1, .every_minutes = 1e-12}).is_due());
}

TEST(OwedSaves, WhatOneRankIsDueAllOwe) {
  OwedSaves owed({.every = 0});
  owed.note_asked({.stop = true});
  EXPECT_FALSE(owed.is_owed());
  owed.note_asked({.is_due = true});
  EXPECT_TRUE(owed.is_owed());
  owed.note_start();
  EXPECT_FALSE(owed.take_word(false));  // the clock gets no word
}

// Who asks gets word when the save is there: not while it is owed or under way, and once.
TEST(OwedSaves, GiveWordOfASaveThatWasAskedFor) {
  OwedSaves owed({.every = 0});
  owed.note_asked({.save = true});
  EXPECT_TRUE(owed.is_owed());
  EXPECT_FALSE(owed.take_word(false));
  owed.note_start();
  EXPECT_FALSE(owed.take_word(true));
  EXPECT_TRUE(owed.take_word(false));
  EXPECT_FALSE(owed.take_word(false));
}

// The state is saved already: there is nothing to start, but there is word.
TEST(OwedSaves, GiveWordOfASaveThatIsThere) {
  OwedSaves owed({.every = 0});
  owed.note_asked({.save = true});
  owed.drop();
  EXPECT_FALSE(owed.is_owed());
  EXPECT_TRUE(owed.take_word(false));
}

}  // namespace
}  // namespace tessera
