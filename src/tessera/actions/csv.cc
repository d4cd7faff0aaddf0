#include "tessera/actions/csv.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "tessera/actions/as_index.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

constexpr std::size_t kMaxDigits = 6;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some spreadsheets write it

struct Cell {
  std::vector<StageAction> actions;  // none: a bubble, or left out
  bool is_left_out = false;
};

// Where a cell is in the text: row and column, from 1.
struct CellPlace {
  std::size_t row = 0;
  std::size_t column = 0;
};

// The parts of `text` between separators: one more than there are of these.
std::vector<std::string_view> cut(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(at + 1);
  }
}

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

// What a cell says: spreadsheets may put it in quotation marks.
std::string_view text_of(std::string_view cell) {
  cell = without_spaces(cell);
  if (cell.size() >= 2 && cell.starts_with('"') && cell.ends_with('"')) {
    cell = without_spaces(cell.substr(1, cell.size() - 2));
  }
  return cell;
}

bool is_empty_row(std::string_view line) {
  return std::ranges::all_of(cut(line, ','), &std::string_view::empty, text_of);
}

// Takes the digits at the start of `text`; nothing where there are none or too many.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
    if (digits == kMaxDigits) {
      return std::nullopt;
    }
    number = 10 * number + (text[digits] - '0');
    ++digits;
  }
  text.remove_prefix(digits);
  return digits > 0 ? std::optional(number) : std::nullopt;
}

// Takes capital letters and underscores.
std::string_view take_word(std::string_view& text) {
  const auto* const end =
      std::ranges::find_if_not(text, [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; });
  const std::string_view word = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  text.remove_prefix(word.size());
  return word;
}

std::optional<ActionKind> kind_of(std::string_view word) {
  using enum ActionKind;
  for (const ActionKind kind : {kForward, kBackward, kInputGradient, kWeightGradient}) {
    if (word.size() == 1 && word[0] == letter(kind)) {
      return kind;
    }
  }
  return std::nullopt;
}

bool is_left_out(std::string_view word) {
  constexpr std::array<std::string_view, 7> kWords = {
      "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
  return std::ranges::find(kWords, word) != kWords.end();
}

// "2F0", "2F0.1", "1SEND_F0", "0UNSHARD"
std::optional<Cell> parse_plain(std::string_view text) {
  const std::optional<std::int64_t> stage = take_number(text);
  const std::string_view word = take_word(text);
  const bool has_microbatch = !text.empty();
  const std::optional<std::int64_t> microbatch = take_number(text);
  std::optional<std::int64_t> slice = 0;
  if (microbatch && text.starts_with('.')) {
    text.remove_prefix(1);
    slice = take_number(text);
  }
  if (!stage || !slice || !text.empty() || has_microbatch != microbatch.has_value()) {
    return std::nullopt;
  }
  if (is_left_out(word)) {
    return Cell{.actions = {}, .is_left_out = true};
  }
  const std::optional<ActionKind> kind = kind_of(word);
  if (!kind || !microbatch) {
    return std::nullopt;
  }
  return Cell{.actions = {{*stage, *kind, *microbatch, *slice}}};
}

// "(0F0;1B1)OVERLAP_F_B"
std::optional<Cell> parse_pair(std::string_view text) {
  constexpr std::string_view kEnd = ")OVERLAP_F_B";
  if (!text.starts_with('(') || !text.ends_with(kEnd)) {
    return std::nullopt;
  }
  text.remove_prefix(1);
  text.remove_suffix(kEnd.size());
  const std::vector<std::string_view> parts = cut(text, ';');
  if (parts.size() != 2) {
    return std::nullopt;
  }
  Cell pair;
  for (const std::string_view part : parts) {
    const std::optional<Cell> one = parse_plain(without_spaces(part));
    if (!one || one->actions.size() != 1) {
      return std::nullopt;
    }
    pair.actions.push_back(one->actions[0]);
  }
  return pair;
}

class TableReader {
 public:
  explicit TableReader(std::string_view source) : source_(source) {}

  ParsedTable read(std::string_view text) {
    if (text.starts_with(kByteOrderMark)) {
      text.remove_prefix(kByteOrderMark.size());
    }
    std::vector<std::string_view> lines = cut(text, '\n');
    while (!lines.empty() && is_empty_row(lines.back())) {
      lines.pop_back();
    }
    TESSERA_REQUIRE(!lines.empty(),
                    ErrorCode::kInvalidConfig,
                    "{}:1:1: the table is empty: expected a row per pipeline rank",
                    source_);
    for (const std::string_view line : lines) {
      table_.rows.emplace_back();
      columns_.emplace_back();
      read_row(line);
    }
    finish();
    return {.table = std::move(table_),
            .notes = notes(),
            .places = {.source = std::string(source_), .columns = std::move(columns_)}};
  }

 private:
  void read_row(std::string_view line) {
    const std::vector<std::string_view> cells = cut(line, ',');
    for (std::size_t i = 0; i < cells.size(); ++i) {
      column_ = i + 1;
      const std::string_view text = text_of(cells[i]);
      if (text.empty()) {
        continue;
      }
      std::optional<Cell> cell = parse_plain(text);
      if (!cell) {
        cell = parse_pair(text);
      }
      if (!cell) {
        refuse(text);
      }
      last_column_ = std::max(last_column_, column_);
      num_left_out_ += cell->is_left_out ? 1 : 0;
      for (const StageAction& action : cell->actions) {
        add(action);
      }
    }
    num_columns_ = std::max(num_columns_, cells.size());
    TESSERA_REQUIRE(!table_.rows.back().empty(),
                    ErrorCode::kInvalidConfig,
                    "{}:{}:1: the row has no action: expected a row per pipeline rank",
                    source_,
                    table_.rows.size());
  }

  [[noreturn]] void refuse(std::string_view text) const {
    constexpr std::size_t kMaxShown = 40;
    fail(
        ErrorCode::kInvalidConfig,
        "{}:{}:{}: \"{}\" is not an action; expected a stage, F, B, I or W, and a microbatch, such "
        "as \"2F0\", or \"2F0.1\" of a slice",
        source_,
        table_.rows.size(),
        column_,
        printable(text.substr(0, kMaxShown)));
  }

  void add(const StageAction& action) {
    const CellPlace place = {.row = table_.rows.size(), .column = column_};
    const auto [found, is_new] = first_of_stage_.emplace(action.stage, place);
    TESSERA_REQUIRE(is_new || found->second.row == place.row,
                    ErrorCode::kInvalidConfig,
                    "{}:{}:{}: {}, but stage {} is in row {}",
                    source_,
                    place.row,
                    place.column,
                    to_string(action),
                    action.stage,
                    found->second.row);
    first_of_microbatch_.emplace(action.microbatch, place);
    first_of_slice_.emplace(action.slice, place);
    table_.rows.back().push_back(action);
    columns_.back().push_back(static_cast<std::int64_t>(column_));
  }

  // Numbers without gaps, which bounds them by the length of the text.
  void finish() {
    for (const auto& [stage, place] : first_of_stage_) {
      TESSERA_REQUIRE(stage == table_.stages,
                      ErrorCode::kInvalidConfig,
                      "{}:{}:{}: the row has stage {}, but no row has stage {}",
                      source_,
                      place.row,
                      place.column,
                      stage,
                      table_.stages);
      table_.rank_of_stage.push_back(static_cast<std::int64_t>(place.row) - 1);
      ++table_.stages;
    }
    table_.microbatches = count("microbatch", first_of_microbatch_);
    table_.slices = count("slice", first_of_slice_);
    table_.ranks = static_cast<std::int64_t>(table_.rows.size());
  }

  std::int64_t count(std::string_view what, const std::map<std::int64_t, CellPlace>& first) const {
    std::int64_t next = 0;
    for (const auto& [number, place] : first) {
      TESSERA_REQUIRE(number == next,
                      ErrorCode::kInvalidConfig,
                      "{}:{}:{}: the table has {} {}, but no {} {}",
                      source_,
                      place.row,
                      place.column,
                      what,
                      number,
                      what,
                      next);
      ++next;
    }
    return next;
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    if (num_left_out_ > 0) {
      notes.push_back(
          format("{}: {} of communication and sharding left out: they follow from the "
                 "actions",
                 source_,
                 format_plural(num_left_out_, "cell")));
    }
    if (last_column_ < num_columns_) {
      notes.push_back(
          format("{}: the last {} are empty",
                 source_,
                 format_plural(static_cast<std::int64_t>(num_columns_ - last_column_), "column")));
    }
    return notes;
  }

  std::string_view source_;
  ActionTable table_;
  std::vector<std::vector<std::int64_t>> columns_;  // of the actions
  std::map<std::int64_t, CellPlace> first_of_stage_;
  std::map<std::int64_t, CellPlace> first_of_microbatch_;
  std::map<std::int64_t, CellPlace> first_of_slice_;
  std::size_t column_ = 0;       // of the cell that is read, from 1
  std::size_t last_column_ = 0;  // that is not empty
  std::size_t num_columns_ = 0;
  std::int64_t num_left_out_ = 0;
};

}  // namespace

ParsedTable parse_table(std::string_view text, std::string_view source) {
  return TableReader(source).read(text);
}

std::string to_csv(const ActionTable& table) {
  std::string text;
  for (const std::vector<StageAction>& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += (i == 0 ? "" : ",") + to_string(row[i]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace tessera
