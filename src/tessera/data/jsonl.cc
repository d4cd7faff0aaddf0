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
  FieldReader(std::string_view field, std::string& text) : field_(field), text_(text) {}

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
    if (!scalar("an object", true)) {
      return false;
    }
    ++depth_;
    return true;
  }

  bool key(std::string& name) override {
    wanted_ = depth_ == 1 && name == field_;
    has_messages_ = has_messages_ || (depth_ == 1 && name == "messages");
    return true;
  }

  bool end_object() override {
    --depth_;
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
  // A value begins; whether it may stand there.
  bool scalar(std::string_view kind, bool is_object = false) {
    if (depth_ == 0 && !is_object) {
      problem_ = format("found {}, expected an object", kind);
      return false;
    }
    if (depth_ == 1 && wanted_) {
      problem_ = format("found {} under \"{}\", expected a string", kind, field_);
      return false;
    }
    return true;
  }

  std::string_view field_;
  std::string& text_;
  std::string problem_;
  std::size_t broken_at_ = 0;
  int depth_ = 0;
  bool wanted_ = false;        // the next value is the field's
  bool has_messages_ = false;  // as a conversation has
  bool found_ = false;
};

}  // namespace

std::string parse_jsonl_line(std::string_view line, std::string_view field, std::string& text) {
  text.clear();
  FieldReader reader(field, text);
  nlohmann::json::sax_parse(line.begin(), line.end(), &reader);
  if (reader.broken_at() == 0) {
    return reader.problem();
  }
  const std::string plain = without_odd_numbers(line);
  if (plain.empty()) {
    return describe_broken(line, reader.broken_at());
  }
  text.clear();
  FieldReader again(field, text);
  nlohmann::json::sax_parse(plain.begin(), plain.end(), &again);
  const std::string problem =
      again.broken_at() > 0 ? describe_broken(plain, again.broken_at()) : again.problem();
  return problem.empty() ? "" : problem + std::string(kOddNumbers);
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
