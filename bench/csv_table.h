#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A table of comma-separated values whose first line names the columns. A cell in quotation marks
// may hold commas, and quotation marks twice each (RFC 4180), but no line feed. Rows are counted
// from 0. All errors are kInvalidData and begin with "SOURCE:ROW:COLUMN: ", both counted from 1
// with the names as row 1.
class CsvTable {
 public:
  // Errors: a row of another length than the first, a quotation mark that is not closed or that
  // stands within a cell.
  CsvTable(std::string_view text, std::string_view source);

  std::size_t num_rows() const { return rows_.size(); }

  // Errors, here and below: no column of this name.
  const std::string& text(std::size_t row, std::string_view column) const;

  // A whole number, at least 1. Errors: anything else.
  std::int64_t count(std::size_t row, std::string_view column) const;

  // A finite number above 0. Errors: anything else.
  double amount(std::size_t row, std::string_view column) const;

  // Says what stands in a cell and what was expected instead.
  [[noreturn]] void refuse(std::size_t row,
                           std::string_view column,
                           std::string_view expected) const;

 private:
  std::size_t index_of(std::string_view column) const;

  std::string source_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tessera
