// Starts `persist lsp` for the first persist.toml of the workspace.

const path = require("path");
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

async function start() {
  const [settings] = await vscode.workspace.findFiles("**/persist.toml", "**/node_modules/**", 1);
  if (settings === undefined) {
    return;
  }
  const [command, ...args] = vscode.workspace.getConfiguration("persist").get("command");
  const root = path.dirname(settings.fsPath);
  const pattern = new vscode.RelativePattern(root, "**/*.{sql,malloy,py,toml}");
  client = new LanguageClient(
    "persist",
    "persist_assets",
    { command, args, options: { cwd: root } },
    {
      documentSelector: ["sql", "malloy", "python"].map((language) => ({
        scheme: "file",
        language,
        pattern: `${root.replace(/\\/g, "/")}/**/*`,
      })),
      synchronize: { fileEvents: vscode.workspace.createFileSystemWatcher(pattern) },
    },
  );
  await client.start();
}

async function stop() {
  await client?.stop();
  client = undefined;
}

async function activate(context) {
  const restart = async () => {
    await stop();
    await start();
  };
  context.subscriptions.push(vscode.commands.registerCommand("persist.restart", restart));
  await start();
}

module.exports = { activate, deactivate: stop };
