#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/conformance.h"

namespace tessera::conformance {

// Names the sample in messages of failed tests.
std::ostream& operator<<(std::ostream& out, const Sample& sample) {
  return out << full_name(sample);
}

namespace {

using testing::IsEmpty;

class OpConformance : public testing::TestWithParam<Sample> {};

TEST_P(OpConformance, AttributesRoundTrip) {
  EXPECT_THAT(check_attributes(GetParam()), IsEmpty());
}

TEST_P(OpConformance, FactorRuleIsWellFormed) {
  EXPECT_THAT(check_factors(GetParam()), IsEmpty());
}

TEST_P(OpConformance, KernelEqualsReference) {
  EXPECT_THAT(check_kernel(GetParam()), IsEmpty());
}

TEST_P(OpConformance, GradientEqualsDifferences) {
  EXPECT_THAT(check_gradient(GetParam()), IsEmpty());
}

TEST_P(OpConformance, ShardsEqualWhole) {
  EXPECT_THAT(check_shards(GetParam()), IsEmpty());
}

std::string test_name(const testing::TestParamInfo<Sample>& info) {
  std::string name = full_name(info.param);
  name.replace(name.find('.'), 1, "__");
  return name;
}

INSTANTIATE_TEST_SUITE_P(Ops, OpConformance, testing::ValuesIn(all_samples()), test_name);

// Sizes that are all odd would leave shard equivalence untested.
TEST(OpSamples, SplitEveryFactorOfEveryOpInBothDtypes) {
  std::map<std::string, bool> is_split;  // by op and dtype of its first operand
  for (const Sample& sample : all_samples()) {
    const std::string key =
        format("{} on {}",
               info(*sample.op).name,
               sample.operands.empty() ? "nothing" : name(sample.operands[0].dtype));
    const Unsplit rest = unsplit_factors(sample);
    is_split[key] = is_split[key] || rest.odd.empty();
  }
  for (const auto& [key, split] : is_split) {
    EXPECT_TRUE(split) << "no sample of " << key << " has even bounds in all factors";
  }
}

TEST(OpSamples, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const Sample& sample : all_samples()) {
    EXPECT_TRUE(names.insert(full_name(sample)).second) << full_name(sample);
  }
}

// How much the text of a sample shows: factors that can be split, then size.
std::pair<int, std::int64_t> interest(const Sample& sample) {
  return {unsplit_factors(sample).num_split,
          sample.operands.empty() ? 0 : sample.operands[0].num_elements()};
}

// One sample for each rule of each op: of those with the same rule, the most interesting.
std::vector<Sample> one_for_each_rule() {
  std::vector<Sample> chosen;
  std::map<std::string, std::size_t> place;  // in chosen, by op and rule
  for (Sample& sample : all_samples()) {
    const std::string rule = to_string(factors(*sample.op, sample.operands));
    const auto [found, is_new] =
        place.emplace(format("{} {}", info(*sample.op).name, rule), chosen.size());
    if (is_new) {
      chosen.push_back(std::move(sample));
    } else if (interest(sample) > interest(chosen[found->second])) {
      chosen[found->second] = std::move(sample);
    }
  }
  return chosen;
}

// Rules and costs as the planner and the passes see them. After an intended change:
// TESSERA_UPDATE_GOLDEN=1 op_conformance_test
TEST(OpRules, EqualTheGoldenText) {
  const std::filesystem::path path =
      std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/op_rules.txt";
  std::string text;
  for (const Sample& sample : one_for_each_rule()) {
    text += describe(sample);
  }
  if (std::getenv("TESSERA_UPDATE_GOLDEN") != nullptr) {
    std::filesystem::create_directories(path.parent_path());
    write_file_atomic(path, text);
  }
  EXPECT_EQ(text, read_file(path)) << "TESSERA_UPDATE_GOLDEN=1 rewrites the file";
}

}  // namespace
}  // namespace tessera::conformance
