// The agent of node_agent.py: the npm package `openai` in a loop, with a calculator written in JavaScript.
// It reads the task from its standard input and the server's address from OPENAI_BASE_URL and OPENAI_API_KEY.

import { readFileSync } from "node:fs";
import OpenAI from "openai";

function calculator({ expression }) {
  const [, left, sign, right] = /^(\d+)([-+*])(\d+)$/.exec(expression) ?? [];
  if (!sign) return "Error: only one operation: + - *";
  const [a, b] = [Number(left), Number(right)];
  return String(sign === "+" ? a + b : sign === "-" ? a - b : a * b);
}

const { messages, tools } = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ maxRetries: 0 });
let reply;
do {
  const answer = await client.chat.completions.create({ model: "policy", messages, tools });
  reply = answer.choices[0].message;
  messages.push(reply);
  for (const call of reply.tool_calls ?? []) {
    const content = calculator(JSON.parse(call.function.arguments));
    messages.push({ role: "tool", tool_call_id: call.id, content });
  }
} while (reply.tool_calls?.length);
console.log(reply.content);
