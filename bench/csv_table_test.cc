#include "bench/csv_table.h"

#include <functional>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// The message of the kInvalidData error that `act` ends in.
std::string refusal_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    return error.what();
  }
  return "nothing";
}

std::string refusal_of_text(std::string_view text) {
  return refusal_of([&] { CsvTable(text, "t.csv"); });
}

TEST(CsvTable, HasItsCellsByName) {
  const CsvTable table("a,b,c\r\n1,\"x, \"\"y\"\"\",\r\n12,,2.5e3", "t.csv");
  ASSERT_EQ(table.num_rows(), 2);
  EXPECT_EQ(table.count(0, "a"), 1);
  EXPECT_EQ(table.text(0, "b"), "x, \"y\"");
  EXPECT_EQ(table.text(0, "c"), "");
  EXPECT_EQ(table.count(1, "a"), 12);
  EXPECT_EQ(table.text(1, "b"), "");
  EXPECT_EQ(table.amount(1, "c"), 2500.0);
  EXPECT_EQ(CsvTable("", "t.csv").num_rows(), 0);
  EXPECT_EQ(CsvTable("a,b\n", "t.csv").num_rows(), 0);
}

TEST(CsvTable, NamesRowAndColumnOfWhatItRefuses) {
  const CsvTable table("a,b\n1,\nx,1e999\n0,-1\n1.5,nan\n", "t.csv");
  EXPECT_EQ(refusal_of([&] { table.count(1, "a"); }),
            "t.csv:3:1: a: found \"x\", expected a whole number, at least 1");
  EXPECT_EQ(refusal_of([&] { table.count(2, "a"); }),
            "t.csv:4:1: a: found \"0\", expected a whole number, at least 1");
  EXPECT_EQ(refusal_of([&] { table.count(3, "a"); }),
            "t.csv:5:1: a: found \"1.5\", expected a whole number, at least 1");
  EXPECT_EQ(refusal_of([&] { table.amount(0, "b"); }),
            "t.csv:2:2: b: found \"\", expected a number above 0");
  for (const std::size_t row : {1U, 2U, 3U}) {
    EXPECT_NE(refusal_of([&] { table.amount(row, "b"); }), "nothing") << row;
  }
  EXPECT_EQ(refusal_of([&] { table.text(0, "d"); }),
            "t.csv:1:1: found no column \"d\", expected one among the names");
}

TEST(CsvTable, RefusesRowsThatAreNone) {
  EXPECT_EQ(refusal_of_text("a,b\n1,2\n1\n"),
            "t.csv:3:1: found 1 cells, expected 2, as many as names in row 1");
  EXPECT_EQ(refusal_of_text("a,b\n1,2,3\n"),
            "t.csv:2:2: found 3 cells, expected 2, as many as names in row 1");
  EXPECT_EQ(refusal_of_text("a,b\n1,\"2\n"),
            "t.csv:2:2: found a quotation mark that is not closed, expected another one in the "
            "line");
  EXPECT_EQ(refusal_of_text("a,b\n1,x\"2\"\n"),
            "t.csv:2:2: found a quotation mark within a cell, expected the whole cell in them");
  EXPECT_EQ(refusal_of_text("a,b\n\"1\"x,2\n"),
            "t.csv:2:1: found text behind a quotation mark, expected a comma or the line's end");
}

}  // namespace
}  // namespace tessera
