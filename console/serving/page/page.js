// Starts textual-serve's terminal once its fonts are there (it measures them once), tells it where its websocket is, and
// says in words why a console has ended.
"use strict";

const REASONS = {
  4000: "You left the console. The run goes on without it.",
  4001: "This server has as many consoles open as it may. Close another tab, or start it with a higher --max-tabs.",
  4002: "The server was ended. The run goes on without it.",
  4003: "The console ended unexpectedly; the terminal of `paceline serve` says why. The run goes on without it.",
};
const LOST = "The connection to the server is lost: it has ended, or cannot be reached. The run goes on without it.";

window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    // Keys work at once, without a click; earlier, the terminal would tell a socket that is not open yet of its focus.
    this.addEventListener("open", () => document.querySelector(".xterm-helper-textarea")?.focus());
    this.addEventListener("close", (event) => {
      document.getElementById("closed-why").textContent = REASONS[event.code] ?? LOST;
    });
  }
};

function addressOfSocket() {
  const address = new URL("ws", window.location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  address.search = "";
  return address.href;
}

function fontSize() {
  const wanted = Number.parseInt(new URLSearchParams(window.location.search).get("fontsize"), 10);
  return Math.min(40, Math.max(8, wanted || 16));
}

async function begin() {
  document.getElementById("again").addEventListener("click", () => window.location.reload());
  const terminal = document.getElementById("terminal");
  terminal.dataset.sessionWebsocketUrl = addressOfSocket();
  terminal.dataset.fontSize = String(fontSize());
  await Promise.allSettled(["16px", "bold 16px", "italic 16px"].map((face) => document.fonts.load(`${face} "Roboto Mono"`)));
  const script = document.createElement("script");
  script.src = "static/js/textual.js";
  script.onload = () => window.onload(new Event("load")); // it waits for an event that has been
  document.head.append(script);
}

window.addEventListener("load", begin);
