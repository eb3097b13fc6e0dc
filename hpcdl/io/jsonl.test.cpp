#include "hpcdl/io/jsonl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

TEST(jsonl, a_line_is_in_the_file_when_write_returns) {
  const TempFolder tmp;
  JsonlWriter log(tmp / "m.jsonl");
  log.write({{"step", 1}, {"loss", 2.5}});
  EXPECT_EQ(read_file(tmp / "m.jsonl"), "{\"loss\":2.5,\"step\":1}\n");
  log.write({{"step", 2}, {"loss", std::nan("")}, {"text", "two\nlines"}});
  EXPECT_EQ(read_file(tmp / "m.jsonl"),
            "{\"loss\":2.5,\"step\":1}\n{\"loss\":null,\"step\":2,\"text\":\"two\\nlines\"}\n");
  EXPECT_THROW(log.write(Json::array()), Error);
}

TEST(jsonl, resuming_removes_what_comes_again) {
  const TempFolder tmp;
  const fs::path path = tmp / "m.jsonl";
  const std::string old = "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n{\"ste";
  write_file_atomic(path, old);
  {
    JsonlWriter log(path, 2);
    log.write({{"step", 3}, {"again", true}});
  }
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"step\":2}\n{\"again\":true,\"step\":3}\n");
  const JsonlWriter fresh(path);
  EXPECT_EQ(read_file(path), "");
  EXPECT_THROW(JsonlWriter(tmp / "missing/m.jsonl"), Error);
}

}  // namespace
}  // namespace hpcdl::io
