#include "tessera/report/page.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

MetricsTable table(std::size_t num_steps) {
  MetricsTable metrics;
  for (const char* name :
       {"loss", "grad_norm", "lr", "tokens", "step_seconds", "tokens_per_second", "memory_bytes"}) {
    metrics.columns.push_back({.name = name, .values = {}});
  }
  for (std::size_t i = 1; i <= num_steps; ++i) {
    metrics.steps.push_back(static_cast<std::int64_t>(i));
    for (MetricsColumn& column : metrics.columns) {
      column.values.push_back(1.0 / static_cast<double>(i));
    }
  }
  return metrics;
}

nlohmann::json data_of(const std::string& html) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = html.find(begin) + begin.size();
  return nlohmann::json::parse(html.substr(at, html.find("</script>", at) - at));
}

TEST(Page, HasTheCurvesAsData) {
  const std::string html =
      render_page({.title = "run", .resumed_after = {2}, .clip = 0.5}, table(3));
  const nlohmann::json data = data_of(html);
  EXPECT_EQ(data["resumes"], nlohmann::json({2}));
  EXPECT_EQ(data["charts"].size(), 5U);
  const auto& loss = data["charts"][0]["series"][0];
  EXPECT_EQ(loss["x"], nlohmann::json({1, 2, 3}));
  EXPECT_EQ(loss["y"], nlohmann::json({1.0, 0.5, 0.3333333}));
  EXPECT_FALSE(loss.contains("mean_x"));
  EXPECT_EQ(data["charts"][1]["reference"]["value"], 0.5);
}

TEST(Page, DrawsValidationsIntoTheLoss) {
  MetricsTable metrics = table(4);
  const double none = std::numeric_limits<double>::quiet_NaN();
  metrics.columns.push_back({.name = "validation_loss", .values = {none, 0.75, none, 0.25}});
  const nlohmann::json loss = data_of(render_page({.title = "run"}, metrics))["charts"][0];
  ASSERT_EQ(loss["series"].size(), 2U);
  EXPECT_EQ(loss["series"][1]["name"], "Validation loss");
  EXPECT_EQ(loss["series"][1]["x"], nlohmann::json({2, 4}));
  EXPECT_EQ(loss["series"][1]["y"], nlohmann::json({0.75, 0.25}));
  EXPECT_EQ(loss["series"][1]["num_not_finite"], 0) << "steps without a validation are none";
}

TEST(Page, ExtremeNumbersStayNumbers) {
  MetricsTable metrics = table(4);
  metrics.columns[0].values = {std::numeric_limits<double>::max(),
                               std::numeric_limits<double>::denorm_min(),
                               -0.0,
                               std::numeric_limits<double>::infinity()};
  const auto loss = data_of(render_page({.title = "run"}, metrics))["charts"][0]["series"][0];
  EXPECT_EQ(loss["y"].size(), 3U);
  EXPECT_NEAR(loss["y"][0].get<double>() / std::numeric_limits<double>::max(), 1.0, 1e-6);
  EXPECT_GT(loss["y"][1], 0.0);
  EXPECT_EQ(loss["not_finite"], nlohmann::json({4}));
}

// However long the run, the page is small, and needs nothing else.
TEST(Page, IsSmallAndSelfContained) {
  const std::string html = render_page({.title = "run"}, table(100'000));
  EXPECT_LT(html.size(), 600'000U);
  EXPECT_THAT(html,
              AllOf(HasSubstr("default-src 'none'"),
                    Not(HasSubstr(" src=")),
                    Not(HasSubstr("@import")),
                    Not(HasSubstr("url("))));
}

TEST(Page, EscapesEveryText) {
  const std::string evil = "</script></style><img src=x onerror='a()'>\"&\xFF";
  MetricsTable metrics = table(2);
  metrics.columns.push_back({.name = "comm_bytes/" + evil, .values = {1.0, 2.0}});
  const std::string html = render_page({.title = evil,
                                        .subtitle = evil,
                                        .status = {.text = evil},
                                        .notices = {{.text = evil}},
                                        .tiles = {{.label = evil, .value = evil, .detail = evil}},
                                        .facts = {{.title = evil, .facts = {{evil, evil}}}},
                                        .config = evil,
                                        .footer = evil},
                                       metrics);
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, HasSubstr("&lt;img src=x onerror=&#39;a()&#39;&gt;&quot;&amp;"));
  EXPECT_EQ(data_of(html)["charts"][5]["series"][0]["name"],
            "</script></style><img src=x onerror='a()'>\"&\xEF\xBF\xBD");
}

}  // namespace
}  // namespace tessera
