#include "tessera/data/encode_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/testing/faults.h"
#include "tessera/data/test_compress.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

// The documents as strings: a token is a byte, '<' before and '>' behind.
class TextSink : public DocumentSink {
 public:
  void append(std::span<const std::int32_t> tokens) override {
    for (const std::int32_t token : tokens) {
      open += static_cast<char>(token);
    }
  }

  void end_document() override {
    documents.push_back(open);
    open.clear();
  }

  void reached(const ReadState& state) override { states.push_back(state); }

  std::vector<std::string> documents;
  std::string open;
  std::vector<ReadState> states;
};

// Throws at the state with this number.
class StoppingSink : public TextSink {
 public:
  struct Stop {};

  explicit StoppingSink(std::size_t last) : last_(last) {}

  void reached(const ReadState& state) override {
    TextSink::reached(state);
    if (states.size() > last_) {
      throw Stop();
    }
  }

 private:
  std::size_t last_;
};

// In front of a space that something visible is in front of.
std::size_t find_cut(std::string_view text, std::size_t most) {
  std::size_t at = std::min(most, text.size() - 1);
  while (at > 0 && (text[at] != ' ' || text[at - 1] <= ' ')) {
    --at;
  }
  return at;
}

TextEncoder byte_encoder(bool may_cut = false) {
  const auto encode = [](std::string_view text, bool continues, const TokenSink& sink) {
    EXPECT_TRUE(!continues || text.front() == ' ') << "a part that begins where none may";
    const std::vector<std::int32_t> tokens(text.begin(), text.end());
    sink(std::span(tokens).first(tokens.size() / 2));
    sink(std::span(tokens).subspan(tokens.size() / 2));
  };
  return {.encode = encode, .find_cut = may_cut ? find_cut : nullptr, .before = {'<'}, .eos = '>'};
}

class EncodeFilesTest : public ::testing::Test {
 protected:
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    write_test_file(directory_.path() / name, text);
    return directory_.path() / name;
  }

  std::vector<std::string> documents(const std::vector<std::filesystem::path>& files,
                                     const TextOptions& options,
                                     bool may_cut = false) const {
    TextSink sink;
    encode_files(files, byte_encoder(may_cut), options, {}, sink);
    EXPECT_EQ(sink.open, "");
    return sink.documents;
  }

  std::string refusal(const std::vector<std::filesystem::path>& files,
                      const TextOptions& options) const {
    return error_of(ErrorCode::kInvalidData, [&] { documents(files, options); });
  }

  TestDirectory directory_;
};

TextOptions jsonl(bool skip_broken = false) {
  TextOptions options;
  options.format = TextFormat::kJsonl;
  options.skip_broken = skip_broken;
  return options;
}

TEST_F(EncodeFilesTest, ALineOfJsonlIsADocument) {
  EXPECT_THAT(documents({write("a",
                               "{\"text\": \"one\"}\n\n{\"text\": \"\"}\r\n{\"text\": \"two\\n\"}\r"
                               "{\"text\": \"three\"}"),
                         write("b", "{\"text\":\"four\"}\n")},
                        jsonl()),
              ElementsAre("<one>", "<two\n>", "<three>", "<four>"));
}

TEST_F(EncodeFilesTest, ThreadsThatTheSystemRefusesAreDoneWithout) {
  std::string text;
  for (int i = 1; i <= 60'000; ++i) {
    text += format("{{\"text\": \"{}\"}}\n", i);
  }
  const std::vector files = {write("a.jsonl", text)};
  TextOptions options = jsonl();
  const std::vector<std::string> expected = documents(files, options);
  options.threads = 4;
  for (const std::int64_t given : {0, 2}) {
    const Faults faults(
        {{.call = FaultCall::kThread, .after = given, .times = Fault::kAlways, .error = EAGAIN}});
    EXPECT_EQ(documents(files, options), expected) << given;
    EXPECT_GT(faults.hits(), 0) << given;
  }
}

TEST_F(EncodeFilesTest, ABrokenLineIsNamedWhateverTheThreads) {
  std::string text;
  for (int i = 1; i <= 60'000; ++i) {
    text += i == 50'000 || i == 50'001 ? "{\"text\": 1}\n" : format("{{\"text\": \"{}\"}}\r\n", i);
  }
  const std::filesystem::path path = write("a.jsonl", text);
  for (const int threads : {1, 4}) {
    TextOptions options = jsonl();
    options.threads = threads;
    EXPECT_EQ(refusal({path}, options),
              format("{}:50000: found a number under \"text\", expected a string (with "
                     "data.skip_broken such lines are left out and counted)",
                     path.string()));
    options.skip_broken = true;
    TextSink sink;
    const ReadState end = encode_files({{path}}, byte_encoder(), options, {}, sink);
    EXPECT_EQ(sink.documents.size(), 59'998U);
    EXPECT_EQ(describe_skipped(end),
              format("skipped 2 broken lines, the first {}:50000: found a number under \"text\", "
                     "expected a string",
                     path.string()));
  }
}

TEST_F(EncodeFilesTest, KeysOfMessagesThatNobodyKnowsAreToldOnce) {
  const std::string line =
      R"({"messages": [{"role": "assistant", "content": "a", "train_mask": 0, "thought": "b"}]})"
      "\n";
  TextOptions options;
  options.format = TextFormat::kChat;
  TextEncoder encoder = byte_encoder();
  encoder.encode_conversation = [](std::span<const Message>, std::vector<std::int32_t>& tokens) {
    tokens.push_back(1);
  };
  const std::filesystem::path path = write("a.jsonl", line + line);
  TextSink sink;
  ::testing::internal::CaptureStderr();
  encode_files({{path}}, encoder, options, {}, sink);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            format("warning: {}: messages have keys that are not known and have no effect: "
                   "\"thought\", \"train_mask\"\n",
                   path.string()));
}

// Formats that are taken for lines of JSON, as their own programs write them.
TEST_F(EncodeFilesTest, LinesOfOtherFormatsSayWhatTheyAre) {
  struct Case {
    std::string file;
    std::string text;
    std::string place;
    std::string problem;
  };

  const std::string good = "{\"text\": \"a\"}";
  const std::string zero(1, '\0');
  const std::string of_zero =
      " of the line is zero, expected JSON: a file that was not written to its end has such bytes; "
      "write it again, or remove them (`tr -d '\\000'`)";
  const std::string of_row =
      "found no JSON but what may be a row of CSV, expected an object: write each row as one, as "
      "Python's json.dumps() does those of csv.DictReader";
  const std::string of_quote =
      " is a single quote, expected a double one: this is how Python prints a dict; json.dumps() "
      "writes it as JSON";
  const std::string of_comment =
      " of the line begins a comment, expected JSON, which has none: remove it";
  const std::string of_more =
      " of the line begins more after the end of its object, expected the end of the line: write "
      "an object a line, as `jq -c .` does";
  const std::vector<Case> cases = {
      // A file system gives zeros where a power cut took what was written.
      {"zeros_behind", good + "\n" + std::string(9, '\0'), ":2: ", "byte 1" + of_zero},
      {"zeros_in_line", good + zero + good + "\n", ":1: ", "byte 14" + of_zero},
      {"zero_in_string", "{\"text\": \"" + zero + "\"}\n", ":1: ", "byte 11" + of_zero},
      {"names.csv", "id,text\n1,\"a, b\"\n", ":1: ", of_row},
      {"numbers.csv", "1,\"a, b\"\n", ":1: ", of_row},
      {"strings.csv", "\"a\",\"b\"\n", ":1: ", of_row},
      {"tabs.tsv", "text\tlabel\n", ":1: ", of_row},
      // print() of a dict, and str() of a list of them.
      {"dicts", good + "\n{'text': 'a'}\n", ":2: ", "byte 2 of the line" + of_quote},
      {"mixed", "{\"text\": 'a'}\n", ":1: ", "byte 10 of the line" + of_quote},
      {"list", "[{'text': 'a'}, {'text': 'b'}]", ": value 1: ", "byte 2 of the value" + of_quote},
      {"jsonc", "// what, and why\n" + good + "\n", ":1: ", "byte 1" + of_comment},
      {"tail", good + "  // a\n", ":1: ", "byte 16" + of_comment},
      {"block", good + "\n  /* a */\n", ":2: ", "byte 3" + of_comment},
      {"hash", "# what it is\n" + good + "\n", ":1: ", "byte 1" + of_comment},
      // RFC 7464: 0x1E, a JSON text, a line feed.
      {"sequence",
       "\x1e" + good + "\n\x1e" + good + "\n",
       ":1: ",
       "byte 1 of the line is a record separator (0x1E), expected an object: this is a JSON text "
       "sequence (RFC 7464), in which `tr -d '\\036'` leaves the objects"},
      {"joined", good + good + "\n", ":1: ", "byte 14" + of_more},
      {"spaced", good + " " + good, ":1: ", "byte 15" + of_more},
      {"commas", good + "," + good + ",\n", ":1: ", "byte 14" + of_more}};
  TextEncoder encoder = byte_encoder();
  encoder.encode_conversation = [](auto&&...) { ADD_FAILURE() << "a conversation"; };
  for (const TextFormat kind : {TextFormat::kJsonl, TextFormat::kChat}) {
    TextOptions options;
    options.format = kind;
    for (const Case& each : cases) {
      if (kind == TextFormat::kChat && each.place == ":2: ") {
        continue;  // its first line is no conversation
      }
      const std::vector files = {write(each.file, each.text)};
      TextSink sink;
      EXPECT_EQ(error_of(ErrorCode::kInvalidData,
                         [&] { encode_files(files, encoder, options, {}, sink); }),
                format("{}{}{} (with data.skip_broken such lines are left out and counted)",
                       files.front().string(),
                       each.place,
                       each.problem));
    }
  }
  const std::vector files = {write("good", good + "\n" + zero + "\n'a', b\n" + good + "\n")};
  EXPECT_THAT(documents(files, jsonl(true)), ElementsAre("<a>", "<a>"));
}

TEST_F(EncodeFilesTest, AListThatIsCutOffIsNamed) {
  const std::filesystem::path between =
      write("a.json", "[{\"text\": \"a\"},\n{\"text\": \"b\"},\n");
  EXPECT_THAT(
      refusal({between}, jsonl()),
      StartsWith(between.string() + ": value 3: the list is not closed: is the file cut off?"));
  EXPECT_THAT(documents({between}, jsonl(true)), ElementsAre("<a>", "<b>"));
  const std::filesystem::path inside = write("b.json", "[{\"text\": \"a\"},\n{\"text\": \"b");
  EXPECT_THAT(refusal({inside}, jsonl()),
              StartsWith(inside.string() + ": value 2: broken JSON at byte 12 of the value"));
  const std::filesystem::path comma = write("c.json", "[{\"text\": \"a\"}{\"text\": \"b\"}]");
  EXPECT_THAT(refusal({comma}, jsonl()),
              StartsWith(comma.string() + ": value 2: found no comma between this value and"));
}

TEST_F(EncodeFilesTest, ALineAboveTheLimitIsNamed) {
  TextOptions options = jsonl();
  options.line_limit = 1 << 20;
  const std::filesystem::path path =
      write("a", "{\"text\": \"a\"}\n{\"text\": \"" + std::string(3 << 20, 'x') + "\"}\n");
  EXPECT_EQ(refusal({path}, options),
            format("{}:2: a line of more than 1.00 MiB, expected a document a line (with "
                   "data.skip_broken such lines are left out and counted)",
                   path.string()));
  options.line_limit = 4 << 20;
  EXPECT_EQ(documents({path}, options).size(), 2U);
}

// Lines end in every way, at every place near those where the reader stops.
TEST_F(EncodeFilesTest, ALineAboveTheLimitIsPassedOver) {
  constexpr std::size_t kLimit = std::size_t{1} << 20U;
  for (const char* const end : {"\n", "\r", "\r\n"}) {
    for (const std::size_t size :
         {kLimit - 1, kLimit, kLimit + 1, 5 * kLimit / 4 - 1, 5 * kLimit / 4, 3 * kLimit}) {
      for (const char* const last : {"", "{\"text\": 3}", "{\"text\": \"b\"}"}) {
        TextOptions options = jsonl(true);
        options.line_limit = kLimit;
        const std::string text =
            format("{{\"text\": \"a\"}}{}{}{}{}", end, std::string(size, 'x'), end, last);
        const std::filesystem::path path = write("a", text);
        TextSink sink;
        const ReadState state = encode_files({&path, 1}, byte_encoder(), options, {}, sink);
        EXPECT_THAT(sink.documents.front(), "<a>");
        EXPECT_EQ(sink.documents.size(), std::string_view(last).ends_with("\"}") ? 2U : 1U);
        EXPECT_EQ(state.num_skipped, std::string_view(last).ends_with("3}") ? 2 : 1);
        EXPECT_THAT(state.first_skipped, StartsWith(path.string() + ":2: "));
      }
    }
  }
}

TEST_F(EncodeFilesTest, RefusesFilesWithoutText) {
  const std::filesystem::path blank = write("blank", "\n\r\n \n");
  EXPECT_EQ(refusal({blank}, jsonl()),
            format("{} holds no documents: expected text", blank.string()));
  const std::filesystem::path empty = write("e.gz", compressed(Compression::kGzip, ""));
  EXPECT_EQ(refusal({empty}, {}), format("{} is empty: expected text", empty.string()));
}

TEST_F(EncodeFilesTest, CompressedFilesAreTheirText) {
  std::string text;
  for (int i = 0; i < 40'000; ++i) {
    text += format("{{\"text\": \"document {}\"}}\n", i);
  }
  const std::vector<std::string> expected = documents({write("a.jsonl", text)}, jsonl());
  for (const auto& [name, compression] : {std::pair("a.jsonl.gz", Compression::kGzip),
                                          std::pair("a.jsonl.zst", Compression::kZstd)}) {
    EXPECT_EQ(documents({write(name, compressed(compression, text))}, jsonl()), expected);
  }
}

// Separators that overlap themselves, at every offset from the places where the reader cuts.
TEST_F(EncodeFilesTest, ASeparatorIsFoundWhereverTheReaderCuts) {
  for (int shift = 0; shift < 4; ++shift) {
    std::string text(static_cast<std::size_t>((256 << 10) - shift), 'x');
    text += "\n\n\n\ny\n\n\nz z z";
    std::string expected_first = "<" + text.substr(0, text.find('\n')) + ">";
    for (const bool cuts : {false, true}) {
      EXPECT_THAT(documents({write("a", text)}, {.document_separator = "\n\n"}, cuts),
                  ElementsAre(expected_first, "<y>", "<\nz z z>"));
    }
  }
}

// Words of random lengths in several documents, some longer than a stretch.
std::string words(std::size_t size) {
  std::string text;
  for (std::uint64_t i = 0; text.size() < size; ++i) {
    const double draw = uniform(3, i);
    text += draw < 0.001 ? "\n--\n" : draw < 0.2 ? "\n" : " ";
    text.append(static_cast<std::size_t>(draw * 12), static_cast<char>('a' + i % 26));
  }
  return text;
}

TEST_F(EncodeFilesTest, ALongDocumentIsOneWhereverItIsCut) {
  const std::string text = words(3'000'000);
  for (const int threads : {1, 3}) {
    TextOptions options;
    options.threads = threads;
    EXPECT_THAT(documents({write("a", text)}, options, true), ElementsAre("<" + text + ">"));
  }
}

// Not in memory, but in a file beside: no place to cut, or none before 9 MB.
TEST_F(EncodeFilesTest, WhatCannotBeCutIsSpooled) {
  std::string text;
  text.resize(20'000'000, 'x');
  EXPECT_THAT(documents({write("a", text + "|short|" + text)}, {.document_separator = "|"}),
              ElementsAre("<" + text + ">", "<short>", "<" + text + ">"));
  EXPECT_THAT(documents({write("a", text + " y")}, {}, true), ElementsAre("<" + text + " y>"));
}

// From every state that a run reports, another run gives the rest.
TEST_F(EncodeFilesTest, GoesOnFromAnyState) {
  std::string lines;
  for (int i = 0; i < 70'000; ++i) {
    lines += i % 999 == 7 ? "broken\n" : format("{{\"text\": \"line {}\"}}\n", i);
  }
  const std::string text = words(1'500'000);

  struct Case {
    std::vector<std::filesystem::path> files;
    TextOptions options;
  };

  const std::vector<Case> cases = {
      {.files = {write("a.txt", text), write("b.txt", "tail")},
       .options = {.document_separator = "\n--\n"}},
      {.files = {write("long.txt.gz", compressed(Compression::kGzip, text))}, .options = {}},
      {.files = {write("a.jsonl", lines),
                 write("b.jsonl.zst", compressed(Compression::kZstd, lines))},
       .options = jsonl(true)}};
  for (const Case& test : cases) {
    TextSink whole;
    const ReadState end = encode_files(test.files, byte_encoder(true), test.options, {}, whole);
    ASSERT_GE(whole.states.size(), 4U);
    EXPECT_EQ(end, whole.states.back());
    for (std::size_t i = 0; i < whole.states.size(); ++i) {
      // What the first run had given up to this state.
      TextSink sink;
      StoppingSink first(i);
      EXPECT_THROW(encode_files(test.files, byte_encoder(true), test.options, {}, first),
                   StoppingSink::Stop);
      sink.documents = first.documents;
      sink.open = first.open;
      EXPECT_EQ(encode_files(test.files, byte_encoder(true), test.options, whole.states[i], sink),
                end);
      EXPECT_EQ(sink.documents, whole.documents);
    }
  }
}

// What the encoder refuses is told with the line, or with where in a file its text begins.
TEST_F(EncodeFilesTest, PlacesOfWhatCannotBeEncoded) {
  TextEncoder encoder = byte_encoder();
  encoder.encode = [](std::string_view text, bool, const TokenSink&) {
    TESSERA_REQUIRE(
        text.find('!') == std::string_view::npos, ErrorCode::kInvalidData, "no token for it");
  };
  const auto refuse = [&](const std::filesystem::path& file, const TextOptions& options) {
    TextSink sink;
    return error_of(ErrorCode::kInvalidData,
                    [&] { encode_files(std::span(&file, 1), encoder, options, {}, sink); });
  };
  const auto lines = write("a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b!\"}\n");
  EXPECT_EQ(refuse(lines, jsonl()), "no token for it (in " + lines.string() + ":3)");
  const auto text = write("a.txt", "one--two!--three");
  EXPECT_EQ(refuse(text, {}), "no token for it (in " + text.string() + ")");
  TextOptions separated;
  separated.document_separator = "--";
  EXPECT_EQ(refuse(text, separated),
            "no token for it (in " + text.string() + ", in the text from its byte 6 on)");
}

}  // namespace
}  // namespace tessera
