#include "tessera/data/jsonl.h"

#include <cstddef>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tessera/data/json_line.h"

namespace tessera {
namespace {

// Picks one string out of an object while it is parsed, so that no line becomes a tree.
class FieldReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  FieldReader(std::string_view field, std::string& text, bool has_marks)
      : field_(field), text_(text), has_marks_(has_marks) {}

  bool null() override { return scalar("null"); }

  bool boolean(bool /*value*/) override { return scalar("a boolean"); }

  bool number_integer(std::int64_t /*value*/) override { return scalar("a number"); }

  bool number_unsigned(std::uint64_t /*value*/) override { return scalar("a number"); }

  bool number_float(double /*value*/, const std::string& /*written*/) override {
    return scalar("a number");
  }

  bool binary(nlohmann::json::binary_t& /*value*/) override { return scalar("bytes"); }

  bool string(std::string& value) override {
    if (depth_ == 1 && wanted_) {
      wanted_ = false;
      if (found_) {
        problem_ = format("found the key \"{}\" twice, expected it once", field_);
        return false;
      }
      found_ = true;
      text_.swap(value);
      return true;
    }
    return scalar("a string");
  }

  bool start_object(std::size_t /*elements*/) override {
    in_wanted_object_ = depth_ == 1 && wanted_;
    ++depth_;
    return true;
  }

  bool key(std::string& name) override {
    const bool is_odd = has_marks_ && name.starts_with(kOddMark);
    const std::string_view odd = is_odd ? std::string_view(name).substr(1) : std::string_view();
    if (in_wanted_object_) {
      return refuse_wanted(is_odd ? odd : "an object");
    }
    if (depth_ == 1 && is_odd) {
      problem_ = format("found {}, expected an object", odd);
      return false;
    }
    wanted_ = depth_ == 1 && name == field_;
    has_messages_ = has_messages_ || (depth_ == 1 && name == "messages");
    return true;
  }

  bool end_object() override {
    --depth_;
    if (in_wanted_object_) {
      return refuse_wanted("an object");
    }
    if (depth_ == 0 && !found_) {
      problem_ = format("found no key \"{}\" in the object{}",
                        field_,
                        has_messages_ ? ", but \"messages\": the format chat reads those" : "");
    }
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (!scalar("a list")) {
      return false;
    }
    ++depth_;
    return true;
  }

  bool end_array() override {
    --depth_;
    return true;
  }

  bool parse_error(std::size_t position,
                   const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    broken_at_ = position;
    return false;
  }

  // The byte, from 1, at which the line is no JSON; 0 where it is.
  std::size_t broken_at() const { return broken_at_; }

  const std::string& problem() const { return problem_; }

 private:
  // A value begins that is no object; whether it may stand there.
  bool scalar(std::string_view kind) {
    if (depth_ == 0) {
      problem_ = format("found {}, expected an object", kind);
      return false;
    }
    return depth_ != 1 || !wanted_ || refuse_wanted(kind);
  }

  bool refuse_wanted(std::string_view kind) {
    problem_ = format("found {} under \"{}\", expected a string", kind, field_);
    return false;
  }

  std::string_view field_;
  std::string& text_;
  bool has_marks_;  // of odd numbers
  std::string problem_;
  std::size_t broken_at_ = 0;
  int depth_ = 0;
  bool wanted_ = false;            // the next value is the field's
  bool in_wanted_object_ = false;  // at its front
  bool has_messages_ = false;      // as a conversation has
  bool found_ = false;
};

}  // namespace

std::string parse_jsonl_line(std::string_view line, std::string_view field, std::string& text) {
  text.clear();
  if (has_zero(line)) {
    return describe_broken(line);
  }
  FieldReader reader(field, text, /*has_marks=*/false);
  nlohmann::json::sax_parse(line.begin(), line.end(), &reader);
  if (reader.broken_at() == 0) {
    // Read no further than the first cell of a row.
    return reader.problem().empty() || !is_row(line) ? reader.problem() : describe_broken(line);
  }
  const std::string marked = with_marked_odd_numbers(line);
  if (marked.empty()) {
    return describe_broken(line);
  }
  text.clear();
  FieldReader again(field, text, /*has_marks=*/true);
  nlohmann::json::sax_parse(marked.begin(), marked.end(), &again);
  return again.broken_at() > 0 ? describe_broken(line) : again.problem();
}

std::string_view take_line(std::string_view& rest) {
  std::size_t end = rest.find('\n');
  // One that ends with a line feed rarely has a carriage return elsewhere; JSON text never.
  const std::size_t feed = end;
  end = rest.substr(0, end).find('\r');
  if (end == std::string_view::npos) {
    end = feed;
  }
  const std::string_view line = rest.substr(0, end);
  if (end == std::string_view::npos) {
    rest = {};
    return line;
  }
  const bool both = rest[end] == '\r' && end + 1 < rest.size() && rest[end + 1] == '\n';
  rest.remove_prefix(end + (both ? 2 : 1));
  return line;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t") == std::string_view::npos;
}

}  // namespace tessera
