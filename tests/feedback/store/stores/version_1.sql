-- A store of schema version 1, as `sqlite3 feedback.sqlite .dump` writes it, with its user_version.
BEGIN TRANSACTION;
CREATE TABLE dialogues (
        id TEXT PRIMARY KEY, started REAL NOT NULL, person TEXT NOT NULL, source TEXT NOT NULL, heldout INTEGER NOT NULL);
INSERT INTO "dialogues" VALUES('0123456789abcdef0123456789abcdef',1795000000.0,'7438409329663c47','terminal',0);
CREATE TABLE feedback (
        id INTEGER PRIMARY KEY AUTOINCREMENT, dialogue TEXT NOT NULL REFERENCES dialogues, turn INTEGER REFERENCES turns,
        kind TEXT NOT NULL, value REAL, text TEXT, other INTEGER REFERENCES turns, person TEXT NOT NULL,
        created REAL NOT NULL);
INSERT INTO "feedback" VALUES(1,'0123456789abcdef0123456789abcdef',2,'thumb',1.0,NULL,NULL,'7438409329663c47',1795000004.0);
INSERT INTO "feedback" VALUES(2,'0123456789abcdef0123456789abcdef',2,'thumb',-1.0,'short',NULL,'7438409329663c47',1795000005.0);
INSERT INTO "feedback" VALUES(3,'0123456789abcdef0123456789abcdef',3,'choice',NULL,NULL,2,'53591147d9c1e505',1795000006.0);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "meta" VALUES('bot','feedfeedfeedfeedfeedfeedfeedfeed');
INSERT INTO "meta" VALUES('salt','5a175a175a175a175a175a175a175a17');
CREATE TABLE turns (
        id INTEGER PRIMARY KEY AUTOINCREMENT, dialogue TEXT NOT NULL REFERENCES dialogues, position INTEGER NOT NULL,
        speaker TEXT NOT NULL CHECK (speaker IN ('user', 'agent')), text TEXT NOT NULL,
        token_ids TEXT, logprobs TEXT, sampling TEXT, version TEXT, created REAL NOT NULL);
INSERT INTO "turns" VALUES(1,'0123456789abcdef0123456789abcdef',0,'user','Is it far ?',NULL,NULL,NULL,NULL,1795000001.0);
INSERT INTO "turns" VALUES(2,'0123456789abcdef0123456789abcdef',1,'agent','Yes .','[5, 6]','[-0.5, -1.25]','{"temperature": 0.7}','0001',1795000002.5);
INSERT INTO "turns" VALUES(3,'0123456789abcdef0123456789abcdef',1,'agent','Two streets .','[7]','[-0.25]','{"temperature": 0.7}','0001',1795000003.5);
CREATE INDEX dialogues_person ON dialogues (person);
CREATE INDEX turns_dialogue ON turns (dialogue, position);
CREATE INDEX feedback_dialogue ON feedback (dialogue);
CREATE INDEX feedback_turn ON feedback (turn);
CREATE INDEX feedback_other ON feedback (other);
CREATE INDEX feedback_person ON feedback (person);
CREATE TRIGGER meta_stays BEFORE UPDATE ON meta BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is updated'); END;
CREATE TRIGGER dialogues_stays BEFORE UPDATE ON dialogues BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is updated'); END;
CREATE TRIGGER turns_stays BEFORE UPDATE ON turns BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is updated'); END;
CREATE TRIGGER feedback_stays BEFORE UPDATE ON feedback BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is updated'); END;
CREATE TRIGGER meta_keeps BEFORE DELETE ON meta BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is deleted but by forget'); END;
CREATE TRIGGER dialogues_keeps BEFORE DELETE ON dialogues BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is deleted but by forget'); END;
CREATE TRIGGER turns_keeps BEFORE DELETE ON turns BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is deleted but by forget'); END;
CREATE TRIGGER feedback_keeps BEFORE DELETE ON feedback BEGIN SELECT RAISE(ABORT, 'the store is append-only: nothing is deleted but by forget'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('turns',3);
INSERT INTO "sqlite_sequence" VALUES('feedback',3);
COMMIT;
PRAGMA user_version=1;
