#include "bench/csv_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

// A line being read.
struct Line {
  std::string_view rest;
  std::string_view source;
  std::size_t row = 0;
  std::size_t column = 1;

  [[noreturn]] void fail_here(std::string_view what) const {
    fail(ErrorCode::kInvalidData, "{}:{}:{}: {}", source, row, column, what);
  }
};

// What stands between quotation marks; the line then begins behind them.
std::string take_quoted(Line& line) {
  std::string cell;
  line.rest.remove_prefix(1);
  for (;;) {
    const std::size_t end = line.rest.find('"');
    if (end == std::string_view::npos) {
      line.fail_here("found a quotation mark that is not closed, expected another one in the line");
    }
    cell += line.rest.substr(0, end);
    line.rest.remove_prefix(end + 1);
    if (!line.rest.starts_with('"')) {
      return cell;
    }
    cell += '"';
    line.rest.remove_prefix(1);
  }
}

// The next cell; the line then begins at the comma behind it, or is empty.
std::string take_cell(Line& line) {
  if (!line.rest.starts_with('"')) {
    const std::size_t end = std::min(line.rest.find(','), line.rest.size());
    std::string cell(line.rest.substr(0, end));
    if (cell.find('"') != std::string::npos) {
      line.fail_here("found a quotation mark within a cell, expected the whole cell in them");
    }
    line.rest.remove_prefix(end);
    return cell;
  }
  std::string cell = take_quoted(line);
  if (!line.rest.empty() && !line.rest.starts_with(',')) {
    line.fail_here("found text behind a quotation mark, expected a comma or the line's end");
  }
  return cell;
}

std::vector<std::string> cells_of(Line line) {
  std::vector<std::string> cells = {take_cell(line)};
  while (!line.rest.empty()) {
    line.rest.remove_prefix(1);
    ++line.column;
    cells.push_back(take_cell(line));
  }
  return cells;
}

template <class Number>
std::optional<Number> parse_all(const std::string& text) {
  Number number = {};
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && last == end ? std::optional(number) : std::nullopt;
}

}  // namespace

CsvTable::CsvTable(std::string_view text, std::string_view source) : source_(source) {
  for (std::size_t row = 1; !text.empty(); ++row) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    std::vector<std::string> cells = cells_of({.rest = line, .source = source, .row = row});
    if (row == 1) {
      names_ = std::move(cells);
      continue;
    }
    TESSERA_REQUIRE(cells.size() == names_.size(),
                    ErrorCode::kInvalidData,
                    "{}:{}:{}: found {} cells, expected {}, as many as names in row 1",
                    source,
                    row,
                    std::min(cells.size(), names_.size()),
                    cells.size(),
                    names_.size());
    rows_.push_back(std::move(cells));
  }
}

std::size_t CsvTable::index_of(std::string_view column) const {
  const auto found = std::ranges::find(names_, column);
  TESSERA_REQUIRE(found != names_.end(),
                  ErrorCode::kInvalidData,
                  "{}:1:1: found no column \"{}\", expected one among the names",
                  source_,
                  column);
  return static_cast<std::size_t>(found - names_.begin());
}

const std::string& CsvTable::text(std::size_t row, std::string_view column) const {
  return rows_[row][index_of(column)];
}

std::int64_t CsvTable::count(std::size_t row, std::string_view column) const {
  const auto number = parse_all<std::int64_t>(text(row, column));
  if (!number || *number < 1) {
    refuse(row, column, "a whole number, at least 1");
  }
  return *number;
}

double CsvTable::amount(std::size_t row, std::string_view column) const {
  const auto number = parse_all<double>(text(row, column));
  if (!number || !std::isfinite(*number) || *number <= 0.0) {
    refuse(row, column, "a number above 0");
  }
  return *number;
}

void CsvTable::refuse(std::size_t row, std::string_view column, std::string_view expected) const {
  fail(ErrorCode::kInvalidData,
       "{}:{}:{}: {}: found \"{}\", expected {}",
       source_,
       row + 2,
       index_of(column) + 1,
       column,
       text(row, column),
       expected);
}

}  // namespace tessera
