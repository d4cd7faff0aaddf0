#include "tessera/tokenizer/normalizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <utf8proc.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"

namespace tessera {
namespace {

using Form = NormalizerStep::Kind;

bool composes(Form form) {
  return form == Form::kNfc || form == Form::kNfkc;
}

utf8proc_option_t options(int bits) {
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): utf8proc's options are or-ed
  return static_cast<utf8proc_option_t>(bits);
}

utf8proc_option_t decomposition(Form form) {
  const bool compatible = form == Form::kNfkc || form == Form::kNfkd;
  return options(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0));
}

utf8proc_int32_t point_of(std::string_view character) {
  return static_cast<utf8proc_int32_t>(code_point_of(character));
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Code points below this are in every form as they are, and never join the character before them.
utf8proc_int32_t first_that_changes(Form form) {
  return form == Form::kNfc ? 0x300 : form == Form::kNfd ? 0xC0 : 0xA0;
}

// Sorts by combining class; what has the same class keeps its order.
void order_marks(std::span<utf8proc_int32_t> marks) {
  constexpr unsigned kPointBits = 21;
  constexpr unsigned kClassShift = 56;
  std::vector<std::uint64_t> keys;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    keys.push_back(static_cast<std::uint64_t>(combining_class(marks[i])) << kClassShift |
                   std::uint64_t{i} << kPointBits | static_cast<std::uint64_t>(marks[i]));
  }
  std::ranges::sort(keys);
  std::ranges::transform(keys, marks.begin(), [](std::uint64_t key) {
    return static_cast<utf8proc_int32_t>(key & ((1U << kPointBits) - 1));
  });
}

// Decomposes, orders marks and composes by the definition (Unicode standard, section 3.11).
// utf8proc_decompose() would do the first two, but in quadratic time for long runs of marks.
std::string unicode_form(std::string_view text, Form form) {
  std::vector<utf8proc_int32_t> points;
  while (!text.empty()) {
    const std::string_view character = text.substr(0, front_utf8(text).size);
    text.remove_prefix(character.size());
    std::array<utf8proc_int32_t, 32> parts{};
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        point_of(character), parts.data(), std::ssize(parts), decomposition(form), &boundary);
    TESSERA_CHECK(count >= 0 && count <= std::ssize(parts), "{} parts", count);
    points.insert(points.end(), parts.begin(), parts.begin() + count);
  }
  for (auto at = points.begin(); at != points.end();) {
    const auto is_starter = [](utf8proc_int32_t point) { return combining_class(point) == 0; };
    const auto begin = std::find_if_not(at, points.end(), is_starter);
    at = std::find_if(begin, points.end(), is_starter);
    order_marks(std::span(begin, at));
  }
  if (composes(form)) {
    const utf8proc_ssize_t size = utf8proc_normalize_utf32(
        points.data(), std::ssize(points), options(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    TESSERA_CHECK(size >= 0, "utf8proc: {}", utf8proc_errmsg(size));
    points.resize(static_cast<std::size_t>(size));
  }
  std::string result;
  for (const utf8proc_int32_t point : points) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const utf8proc_ssize_t size = utf8proc_encode_char(point, bytes.data());
    result.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(size));
  }
  return result;
}

// Looks for stretches that a form may change, and copies from the first that it does.
class FormPass {
 public:
  FormPass(std::string_view text, Form form)
      : text_(text), form_(form), limit_(first_that_changes(form)) {}

  // Nothing if the text is already in the form.
  bool run(std::string& out) {
    while (at_ < text_.size()) {
      const Utf8Sequence front = front_utf8(text_.substr(at_));
      const bool is_valid = front.status == Utf8Status::kComplete;
      if (is_valid && point_of(text_.substr(at_, front.size)) >= limit_) {
        stretch(out);
      } else {
        previous_ = is_valid ? at_ : at_ + front.size;
        at_ += front.size;
      }
    }
    if (changed_) {
      out += text_.substr(copied_);
    }
    return changed_;
  }

 private:
  // From the character before at_, which a mark may join, to the next that joins nothing.
  void stretch(std::string& out) {
    const std::size_t begin = previous_;
    while (at_ < text_.size()) {
      const Utf8Sequence front = front_utf8(text_.substr(at_));
      if (front.status != Utf8Status::kComplete ||
          point_of(text_.substr(at_, front.size)) < limit_) {
        break;
      }
      at_ += front.size;
    }
    previous_ = at_;
    const std::string_view old_text = text_.substr(begin, at_ - begin);
    const std::string new_text = unicode_form(old_text, form_);
    if (new_text != old_text) {
      out += text_.substr(copied_, begin - copied_);
      out += new_text;
      copied_ = at_;
      changed_ = true;
    }
  }

  std::string_view text_;
  Form form_;
  utf8proc_int32_t limit_;
  std::size_t at_ = 0;
  std::size_t previous_ = 0;  // where the character before at_ begins
  std::size_t copied_ = 0;
  bool changed_ = false;
};

// One step; false, with `out` empty, if the text stays as it is.
bool run_step(const NormalizerStep& step, std::string_view text, std::string& out) {
  switch (step.kind) {
    case Form::kNfc:
    case Form::kNfd:
    case Form::kNfkc:
    case Form::kNfkd:
      return FormPass(text, step.kind).run(out);
    case Form::kPrepend:
      out.reserve(step.to.size() + text.size());
      out += step.to;
      out += text;
      return true;
    case Form::kReplace:
      if (text.find(step.from) == std::string_view::npos) {
        return false;
      }
      out = replace_all(text, step.from, step.to);
      return true;
  }
  return false;
}

}  // namespace

std::string_view Normalizer::run(std::string_view text, std::string& memory) const {
  if (text.empty()) {
    return text;  // nothing is prepended to nothing
  }
  for (const NormalizerStep& step : steps_) {
    std::string out;
    if (run_step(step, text, out)) {
      memory = std::move(out);
      text = memory;
    }
  }
  return text;
}

}  // namespace tessera
