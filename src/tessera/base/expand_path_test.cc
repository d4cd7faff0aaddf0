#include "tessera/base/expand_path.h"

#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class ExpandPath : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("HOME", "/x/home", 1);
    ::setenv("TESSERA_TEST_SCRATCH", "/scratch/a", 1);
    ::setenv("TESSERA_TEST_ODD", "/x/~$HOME", 1);
    ::setenv("TESSERA_TEST_EMPTY", "", 1);
    ::unsetenv("TESSERA_TEST_UNSET");
  }

  static std::string refused(const std::string& path) {
    return error_of(ErrorCode::kInvalidConfig, [&] { expand_path(path); });
  }
};

TEST_F(ExpandPath, ReplacesHomeAndVariables) {
  EXPECT_EQ(expand_path("~"), "/x/home");
  EXPECT_EQ(expand_path("~/runs/x"), "/x/home/runs/x");
  EXPECT_EQ(expand_path("$TESSERA_TEST_SCRATCH/x"), "/scratch/a/x");
  EXPECT_EQ(expand_path("d${TESSERA_TEST_SCRATCH}x/$HOME"), "d/scratch/ax//x/home");
  EXPECT_EQ(expand_path("$TESSERA_TEST_ODD"), "/x/~$HOME") << "what comes in stays as it is";
}

TEST_F(ExpandPath, LeavesOtherPathsAlone) {
  for (const std::string path : {"",
                                 "runs/x",
                                 "./~x",
                                 "a~",
                                 "x/~/y",
                                 "cost$5.txt",
                                 "a$",
                                 "$.txt",
                                 "a b\\c",
                                 "{x}",
                                 "-",
                                 "auto"}) {
    EXPECT_EQ(expand_path(path), path);
  }
  EXPECT_EQ(expand_path("a$$HOME"), "a$HOME");
  EXPECT_EQ(expand_path("$$$$"), "$$");
}

TEST_F(ExpandPath, RefusesByName) {
  EXPECT_THAT(refused("$TESSERA_TEST_UNSET/x"),
              HasSubstr("the environment variable TESSERA_TEST_UNSET is not set"));
  EXPECT_THAT(refused("${TESSERA_TEST_EMPTY}/x"), HasSubstr("TESSERA_TEST_EMPTY is empty"));
  EXPECT_THAT(refused("~someone/x"), HasSubstr("./~someone/x for a file of that name"));
  for (const char* path : {"$(date)/x", "${HOME:-x}", "${HOME", "${}", "${1}"}) {
    EXPECT_THAT(refused(path), HasSubstr("only $NAME and ${NAME} are replaced"));
  }
  ::unsetenv("HOME");
  EXPECT_THAT(refused("~/x"), HasSubstr("the environment variable HOME is not set"));
}

TEST_F(ExpandPath, IsWrittenSoThatItReadsBack) {
  for (const std::string path :
       {"a$HOME", "$$", "$(x)", "a$5$", "${x}", "/x/~$HOME", "", "plain", "a$$$HOME", "$"}) {
    EXPECT_EQ(expand_path(unexpanded_path(path)), path);
  }
  EXPECT_EQ(expand_path(unexpanded_path("~x")), "./~x");
}

}  // namespace
}  // namespace tessera
