#include "hpcdl/io/pickle.h"

#include <gtest/gtest.h>

#include "hpcdl/core/error.h"

namespace hpcdl::io::pickle {
namespace {

using namespace std::string_literals;

constexpr std::string_view kKnown[] = {"torch.Size", "torch.float32", "a.Plain"};

std::string error(const std::string& bytes) {
  try {
    read(bytes, "x", kKnown);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_error(const std::string& bytes, const std::string& part) {
  EXPECT_NE(error(bytes).find(part), std::string::npos) << error(bytes) << "\nexpected: " << part;
}

TEST(pickle, calls_nothing_and_names_what_it_refuses_with_its_position) {
  expect_error(
      "\x80\x02"
      "cos\nsystem\n(U\x04"
      "lsxxtR."s,
      "at byte 2: it asks for Python's \"os.system\", which is not called here");
  expect_error(
      "\x80\x02"
      "cbuiltins\neval\n."s,
      "builtins.eval");
  expect_error("\x80\x04\x8c\x02os\x8c\x06system\x93)R."s, "at byte 14: it asks for Python's \"os.system\"");
  expect_error(
      "\x80\x02"
      "ctorch\nfloat64\n."s,
      "torch.float64");
  expect_error(
      "\x80\x02"
      "ctorch\nSize\n)}\x92."s,
      "instruction 0x92");  // a call with keywords
  expect_error("\x80\x02(ctorch\nSize\no."s, "instruction 0x6f");
  expect_error("\x80\x02i"s, "instruction 0x69");
  expect_error("\x80\x02\x82\x01."s, "instruction 0x82");  // a name from a registry of extensions
  expect_error(
      "\x80\x02U\x01"
      "a)R."s,
      "expected a known name to make an object of");
  expect_error(
      "\x80\x02"
      "ctorch\nSize\n]R."s,
      "expected a tuple of arguments");
  expect_error("\x80\x02]}b."s, "expected an object that gets a state");
  expect_error(
      "\x80\x02"
      "ca\nPlain\n)\x81}b}b."s,
      "the state of an object twice");
}

TEST(pickle, damage_is_refused) {
  expect_error("hello"s, "protocol number");
  expect_error("\x80\x01N."s, "expected protocol 2 to 5, found 1");
  expect_error("\x80\x06N."s, "expected protocol 2 to 5, found 6");
  expect_error(
      "\x80\x02U\x09"
      "abc."s,
      "truncated");
  expect_error("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff."s, "truncated");
  expect_error("\x80\x04\x95\xff\0\0\0\0\0\0\0N."s, "a frame that is longer than the file");
  expect_error(
      "\x80\x02\x8a\x09"
      "123456789."s,
      "an integer of 9 bytes");
  expect_error("\x80\x02NN."s, "something other than one value");
  expect_error("\x80\x02(N."s, "something other than one value");
  expect_error("\x80\x02R."s, "more values than");
  expect_error("\x80\x02](R."s, "more values than");  // not across a mark
  expect_error(
      "\x80\x02"
      "e."s,
      "a mark is missing");
  expect_error("\x80\x02h\x07."s, "value 7 is used before");
  expect_error("\x80\x02}(Nu."s, "a key without a value");
  expect_error("\x80\x02" + std::string(65, '('), "more than 64 marks");
  expect_error(
      "\x80\x02"
      "cno end"s,
      "a name without an end");
}

TEST(pickle, reads_plain_values) {
  const auto bytes =
      "\x80\x02}(U\x01"
      "aK\x05X\x01\0\0\0bJ\xff\xff\xff\xffU\x01"
      "c](\x88NM\0\x01"
      "eu."s;
  const auto document = read(bytes, "x", {});
  EXPECT_EQ(*find(document.root(), "a")->as<std::int64_t>(), 5);
  EXPECT_EQ(*find(document.root(), "b")->as<std::int64_t>(), -1);
  const auto& list = find(document.root(), "c")->as<List>()->items;
  ASSERT_EQ(list.size(), 3u);
  EXPECT_TRUE(*list[0]->as<bool>());
  EXPECT_TRUE(list[1]->as<None>());
  EXPECT_EQ(*list[2]->as<std::int64_t>(), 256);
  EXPECT_EQ(find(document.root(), "d"), nullptr);
  EXPECT_EQ(find(*list[1], "d"), nullptr);
}

TEST(pickle, reads_numbers_of_every_form) {
  const auto bytes =
      "\x80\x04(\x8a\0\x8a\x01\xff\x8a\x02\0\x80\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"
      "G\xbf\xf8\0\0\0\0\0\0t."s;
  const auto document = read(bytes, "x", {});
  const auto& items = document.root().as<Tuple>()->items;
  ASSERT_EQ(items.size(), 5u);
  EXPECT_EQ(*items[0]->as<std::int64_t>(), 0);
  EXPECT_EQ(*items[1]->as<std::int64_t>(), -1);
  EXPECT_EQ(*items[2]->as<std::int64_t>(), -32768);
  EXPECT_EQ(*items[3]->as<std::int64_t>(), INT64_MAX);
  EXPECT_EQ(*items[4]->as<double>(), -1.5);
}

TEST(pickle, describes_objects_of_known_names) {
  // Plain() with the state {"size": Size((2, 3))} and one item; the dtype by its name; something stored elsewhere
  const auto bytes =
      "\x80\x04(\x8c\x01"
      "a\x8c\x05Plain\x93)\x81}\x8c\x04sizectorch\nSize\nK\x02K\x03\x86\x85Rsb"
      "\x8c\x01kK\x07s"
      "ctorch\nfloat32\nK\x09Qt."s;
  const auto document = read(bytes, "x", kKnown);
  const auto& items = document.root().as<Tuple>()->items;
  ASSERT_EQ(items.size(), 3u);
  const auto* object = items[0]->as<Object>();
  ASSERT_TRUE(object && object->state);
  EXPECT_EQ(object->name, "a.Plain");
  EXPECT_TRUE(items[0]->made_by("a.Plain")->empty());
  EXPECT_EQ(items[0]->made_by("torch.Size"), nullptr);
  EXPECT_EQ(*find(*items[0], "k")->as<std::int64_t>(), 7);
  const auto* size = find(*object->state, "size")->made_by("torch.Size");
  ASSERT_TRUE(size && size->size() == 1);
  EXPECT_EQ(*size->front()->as<Tuple>()->items[1]->as<std::int64_t>(), 3);
  EXPECT_EQ(items[1]->as<Global>()->name, "torch.float32");
  EXPECT_EQ(*items[2]->as<Persistent>()->id->as<std::int64_t>(), 9);
}

TEST(pickle, a_value_within_itself_and_deep_nesting_do_no_harm) {
  const auto itself =
      "\x80\x02]q\x01h\x01"
      "a."s;
  const auto list = read(itself, "x", {});
  EXPECT_EQ(list.root().as<List>()->items[0], &list.root());
  const auto deep = read("\x80\x02)" + std::string(100'000, '\x85') + ".", "x", {});
  EXPECT_EQ(deep.root().as<Tuple>()->items.size(), 1u);
}

TEST(pickle, memory_is_bounded) {
  const auto refused = [](const std::string& bytes) -> std::string {
    try {
      read(bytes, "x", {}, 100);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refused("\x80\x02(" + std::string(99, 'N') + "t."), "");
  EXPECT_NE(refused("\x80\x02(" + std::string(101, 'N') + "t.").find("more than 100 values"), std::string::npos);
  std::string again = "\x80\x02Nq\x01";
  for (int i = 0; i < 101; ++i) again += "h\x01";
  EXPECT_NE(refused(again).find("more than 100 values at once"), std::string::npos);
  std::string memo = "\x80\x02N";
  for (int i = 0; i < 101; ++i) memo += std::string("r") + static_cast<char>(i) + std::string(3, '\0');
  EXPECT_NE(refused(memo).find("more than 100 values to remember"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::io::pickle
